"""What a person sees in a browser: the page behind an activation link, and the recipient's portal.

headers.py what every page forbids the browser; rendering.py templates; activation.py and portal.py the routes;
in_place.py lets the server itself ask what a recipient may ask, for table_facts.py, table_history.py and preview.py.
"""
