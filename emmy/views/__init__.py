"""Pictures of what the compiler works on: layouts as SVG, the IR of every level as one HTML page. Files, no browser needed."""
