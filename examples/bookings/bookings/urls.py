"""Addresses of the service."""

from django.urls import path

from bookings.views import book, points

urlpatterns = [path("bookings", book), path("guests/<name>", points)]
