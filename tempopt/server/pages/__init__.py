"""The pages for people: HTML that the server renders, and a little script; nothing comes from elsewhere."""
