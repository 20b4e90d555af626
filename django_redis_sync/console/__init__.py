"""The admin pages: their content (`pages`), actions (`confirm`), and HTTP views (`views`)."""
