"""Engines that run the tasks of operations: protocol, engine on local threads, adapters of distributed engines."""
