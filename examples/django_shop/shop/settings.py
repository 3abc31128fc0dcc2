"""Settings: psycopg takes host, user and password from PGHOST, PGUSER and PGPASSWORD."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for the example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "shop"),
    }
}
MAILERS = {"default": {"BACKEND": "pgmta.django.EmailBackend"}}  # Django 6.1
DEFAULT_FROM_EMAIL = "Shop <shop@example.org>"
