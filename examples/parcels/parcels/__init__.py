"""Scans of parcels come in by HTTP; where a parcel is can be asked."""
