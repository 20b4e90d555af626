"""A wizard of two steps, limited by the mixin and by the decorator."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpResponse
from django.urls import path
from formtools.wizard.views import SessionWizardView

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required


class Name(forms.Form):
    name = forms.CharField()


class Mail(forms.Form):
    mail = forms.EmailField()


class Wizard(SessionWizardView):
    def done(self, form_list: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse("done")


class Limited(SemaphoreRequiredMixin, Wizard):
    semaphore_name, semaphore_limit = "one", 1


urlpatterns = [
    path("wizard/", Limited.as_view([Name, Mail])),
    path("around/", semaphore_required("one", limit=1)(Wizard.as_view([Name, Mail]))),
]
