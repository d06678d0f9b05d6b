"""The revisions, oldest first; `migration.REVISIONS` names them."""
