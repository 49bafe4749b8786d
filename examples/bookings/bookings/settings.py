"""Settings of a trial: SQLite, or PostgreSQL where PGDATABASE and the other variables of libpq name it."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

FOLDER = Path(__file__).resolve().parents[1]
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["bookings"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "bookings.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

# The outbox's relay reads the database that Django writes.
DATABASES: dict[str, dict[str, object]]
if NAME := os.environ.get("PGDATABASE"):
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": NAME}}
    OUTBOX_DATABASE = f"postgresql:///{NAME}"
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FOLDER / "bookings.sqlite3",
            "OPTIONS": {
                "init_command": "PRAGMA journal_mode = WAL",
                "timeout": 30,
                "transaction_mode": "IMMEDIATE",
            },
            # A file: handlers in threads and the relay open it too.
            "TEST": {"NAME": FOLDER / "test.sqlite3"},
        }
    }
    OUTBOX_DATABASE = f"sqlite:///{FOLDER}/bookings.sqlite3"
