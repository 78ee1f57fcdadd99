"""One module a panel; `app.ui.registry` lists them."""
