"""How lines get their URLs: whoever writes lines is given a function that signs."""

from collections.abc import Callable

import pyarrow as pa

# One URL per absolute location, in order.
Sign = Callable[[pa.StringArray], list[bytes]]
