"""New projects: a folder with a model, data, a recipe, a test and a deployment that run as they stand."""
