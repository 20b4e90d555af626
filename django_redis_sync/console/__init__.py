"""The admin's pages: their content, their actions, over HTTP."""
