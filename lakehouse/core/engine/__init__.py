"""Where operations run tasks: the engine protocol, the engine on local threads, adapters of distributed engines."""
