"""What is kept on disk: written whole or not at all, and checked before it is used."""
