"""Measurements that hold the speed and memory promises; each prints its figures and fails when one is missed."""
