"""Setup of hosts: their wanted state, their observed state, and the changes from one to the other."""
