"""HTML for people: the page behind an activation link, and the recipient's portal."""
