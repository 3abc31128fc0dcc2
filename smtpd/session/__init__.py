"""One connection and its session: phases, commands' effects, content, AUTH, pace and the end."""
