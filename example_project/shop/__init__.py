"""The shop: pages with locks and limits, and a witness that counts requests without Redis."""
