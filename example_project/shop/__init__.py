"""The shop: a flash sale, exports, and a witness who counts without Redis."""
