"""Requests: the row of a booking and its message are committed together, or neither is."""

from __future__ import annotations

from django.db import IntegrityError, transaction
from django.forms import ModelForm
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from bookings.models import Booked, Booking, Guest
from messagebus.integrations.django import publish_on_commit

__all__ = ["book", "points"]


class BookingForm(ModelForm):
    """Fields of a booking that a guest fills in."""

    class Meta:
        model = Booking
        fields = ("room", "night", "guest")


@require_POST
def book(request: HttpRequest) -> JsonResponse:
    """``POST /bookings`` with room, night and guest.

    No broker is asked here: the relay publishes the message after the commit.
    """
    form = BookingForm(request.POST)
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    try:
        with transaction.atomic():
            booking = form.save()
            booked = Booked(booking.pk, booking.room, booking.night, booking.guest)
            publish_on_commit("bookings", booked, key=booking.guest)
    except IntegrityError:  # somebody else was faster
        return JsonResponse({"room": ["the room is taken that night"]}, status=409)
    return JsonResponse({"number": booking.pk}, status=201)


@require_GET
def points(request: HttpRequest, name: str) -> JsonResponse:
    """``GET /guests/NAME``."""
    return JsonResponse({"points": get_object_or_404(Guest, name=name).points})
