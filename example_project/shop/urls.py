"""The pages of the shop."""

from django.urls import path

from example_project.shop import prices, streams, tills, views

urlpatterns = [
    path("", views.index, name="index"),
    path("sale/", views.flash_sale, name="flash-sale"),
    path("sale/new/", views.new_sale, name="new-sale"),
    path("exports/now/", views.export_now, name="export-now"),
    path("exports/in-line/", views.export_in_line, name="export-in-line"),
    path("exports/slow/", views.slow_export, name="slow-export"),
    path("queue/", tills.queue, name="queue"),
    path("prices/", prices.prices, name="prices"),
    path("stream/", streams.stream, name="stream"),
    path("async/sale/", views.async_flash_sale, name="async-flash-sale"),
    path("async/exports/now/", views.async_export_now, name="async-export-now"),
    path("async/exports/in-line/", views.async_export_in_line, name="async-export-in-line"),
    path("async/exports/slow/", views.async_slow_export, name="async-slow-export"),
    path("async/queue/", tills.async_queue, name="async-queue"),
    path("async/prices/", prices.async_prices, name="async-prices"),
    path("async/stream/", streams.async_stream, name="async-stream"),
]
