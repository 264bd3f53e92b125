"""One HTML page that shows what a folder holds; `page.py` puts it together."""
