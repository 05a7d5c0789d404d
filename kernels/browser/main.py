"""The browser of a session: a kernel whose cells are actions, each a JSON object.

    python -I main.py        descriptor 3 is the control socket, as for every kernel
"""

import os
import sys

CONTROL = 3

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # The frames are those of the Python kernel.
    places = [here, os.path.join(os.path.dirname(here), "python")]
    sys.path[:0] = places
    from belljar_browser.service import serve

    serve(CONTROL)
