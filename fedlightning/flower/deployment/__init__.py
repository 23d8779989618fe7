"""Folders, certificates, keys and commands of federations on several machines."""
