#!/bin/sh
# Packages start nothing when they are installed: without systemd they would start it in ways that
# no real host has.
exit 101
