"""The data path: HTTP/1 connections on both sides, and what runs between them."""
