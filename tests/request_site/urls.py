from django.urls import include, path

from tests.request_site import drf, views

reports = (
    [
        path("export/", views.plain, name="export"),
        path("list/", views.plain, name="list"),
        path("stream/", views.plain_stream, name="stream"),
        path("astream/", views.aplain_stream, name="astream"),
        path("aexport/", views.aplain, name="aexport"),
    ],
    "reports",
)

urlpatterns = [
    path("reports/", include(reports)),
    path("free/", views.plain, name="free"),
    path("quick/", views.quick, name="quick"),
    path("afree/", views.aplain, name="afree"),
    path("limited/", views.limited, name="limited"),
    path("alimited/", views.alimited, name="alimited"),
    path("stream/", views.stream, name="stream"),
    path("astream/", views.astream, name="astream"),
    path("flood/", views.flood, name="flood"),
    path("aflood/", views.aflood, name="aflood"),
    path("file/", views.file, name="file"),
    path("template/", views.template, name="template"),
    path("slow_template/", views.slow_template, name="slow_template"),
    path("broken_template/", views.broken_template, name="broken_template"),
    path("gated/", drf.Gated.as_view(), name="gated"),
    path("adispatch/", views.AsyncDispatch.as_view(), name="adispatch"),
    path("onget/", views.OnGet.as_view(), name="onget"),
    path("mixed/", views.Mixed.as_view(), name="mixed"),
    path("amixed/", views.AsyncMixed.as_view(), name="amixed"),
    path("members/", views.members_only, name="members"),
    path("counter/", views.counter, name="counter"),
    path("tenant/", views.tenant, name="tenant"),
    path("atenant/", views.atenant, name="atenant"),
    path("turn/", views.turn, name="turn"),
    path("aturn/", views.aturn, name="aturn"),
]
