"""What is kept on disk: written whole or not at all, checked before it is believed."""
