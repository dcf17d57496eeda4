"""What gradc costs and gains, measured: `python -m benchmarks.NAME`, or `gradc bench NAME`. See common.py for how."""
