"""What gradc captured and did, for the tools that people have already: Python files, ``tlparse``, profiles."""

from gradc.traces.structured import start_where_traced

start_where_traced()
