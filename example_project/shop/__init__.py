"""The shop: a flash sale, exports, and a witness that counts requests without Redis."""
