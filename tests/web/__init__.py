"""`queued web`: its endpoints, its pages in a browser, and its bounds."""
