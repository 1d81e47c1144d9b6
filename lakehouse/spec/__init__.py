"""Declarations of users: table specs, options, services; contracts between processes. Imports only light packages."""
