"""HTTP: the public routes, the peers' door, problem documents, and the API's own description."""
