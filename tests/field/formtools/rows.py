"""Rows of django-formtools."""

from tests.field.row import Row

TITLE = "django-formtools"
PACKAGES = ["django-formtools"]
SETTINGS = {
    "INSTALLED_APPS": ["formtools"],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "loaders": [
                    (
                        "django.template.loaders.locmem.Loader",
                        {"formtools/wizard/wizard_form.html": "step {{ wizard.steps.step1 }}"},
                    )
                ]
            },
        }
    ],
}

ROWS = [
    Row("mixin on a `SessionWizardView`", "limits_one_request", path="wizard/"),
    Row("decorator around a `SessionWizardView`", "limits_one_request", path="around/"),
]
