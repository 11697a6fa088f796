"""
The release check: what would be published is built, and used where nothing else of ours is.
"""
