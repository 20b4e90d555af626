"""URLs of the site with a skin."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from django_redis_sync.admin import NameAdmin
from django_redis_sync.models import Name

site = admin.site
urlpatterns = []
if settings.SKIN == "custom":
    site = admin.AdminSite(name="operations")
    site.site_header = site.site_title = "Operations of a shop"
    site.register(Name, NameAdmin)
if settings.SKIN == "grappelli":
    urlpatterns.append(path("grappelli/", include("grappelli.urls")))
urlpatterns.append(path("admin/", site.urls))
