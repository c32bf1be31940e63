"""Reports of the suite: for the terminal, as Markdown, and as an HTML page, from the values of `conformance.results`.

``python -m conformance.report FOLDER FILE.json ...`` writes them again, of several producers side by side.
"""
