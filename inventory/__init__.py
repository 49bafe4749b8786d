"""The operators' inventory of one cluster: its balancers, brokers, hosts and mirrors, read and checked;
and commands run on its hosts.
"""
