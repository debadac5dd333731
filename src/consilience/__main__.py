"""``python -m consilience``: the command, where no script of that name is on the path."""

from consilience_command import main

main()
