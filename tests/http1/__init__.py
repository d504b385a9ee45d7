"""Tests of trioproxy.http1."""
