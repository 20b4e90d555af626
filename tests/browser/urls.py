"""URLs of the site that the browser tests visit. With SKIN=custom, a custom AdminSite is used."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from django_redis_sync.admin import NameAdmin
from django_redis_sync.models import Name

site = admin.site
if settings.SKIN == "custom":
    site = admin.AdminSite(name="operations")
    site.site_header = site.site_title = "Operations of a shop"
    site.register(Name, NameAdmin)
urlpatterns = [path("admin/", site.urls)]
if settings.SKIN == "grappelli":
    urlpatterns.append(path("grappelli/", include("grappelli.urls")))
