"""httpx's functions for servers without TLS: each call of httpx's own loads the certificates, which takes 20 ms."""

from functools import partial

import httpx

request = partial(httpx.request, verify=False)
get = partial(httpx.get, verify=False)
head = partial(httpx.head, verify=False)
options = partial(httpx.options, verify=False)
post = partial(httpx.post, verify=False)
put = partial(httpx.put, verify=False)
delete = partial(httpx.delete, verify=False)
stream = partial(httpx.stream, verify=False)
