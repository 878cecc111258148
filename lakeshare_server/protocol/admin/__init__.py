"""The shapes of the admin API: those of the Databricks shares and recipients API, and what we add to them."""
