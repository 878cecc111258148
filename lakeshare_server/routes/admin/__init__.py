"""The admin API: one file per resource, each of them thin. Paths are those of the Databricks API and OpenSharing's."""
