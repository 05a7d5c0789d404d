"""Draws random numbers, which must differ from those of every other sandbox.

Children of one zygote start with the same generators: tokens, temporary names and samples would repeat
from one conversation to the next. Stopped by reseeding after the fork. The harness compares the runs.
"""
# repeat: 2
# distinct: yes
import os
import random
import secrets
import sys
import tempfile
import uuid

draws = {
    "random": random.getrandbits(64),
    "secrets": secrets.token_hex(8),
    "urandom": os.urandom(8).hex(),
    "uuid4": uuid.uuid4().hex,
    "tempfile": next(tempfile._get_candidate_names()),
}
numpy = sys.modules.get("numpy")  # Only where the zygote has loaded it: its state is in question.
if numpy:
    draws["numpy"] = int(numpy.random.randint(1 << 62))
print("CONTAINED:", *[f"{name}={value}" for name, value in draws.items()])
