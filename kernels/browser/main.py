"""The browser of a session: a kernel whose cells are actions, each a JSON object.

    python -I main.py        the guest speaks over descriptor 3, as to any kernel
"""

import os
import sys

CONTROL = 3

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # How a kernel of Python speaks to its guest is how we do.
    places = [here, os.path.join(os.path.dirname(here), "python")]
    sys.path[:0] = places
    from belljar_browser.service import serve

    serve(CONTROL)
