"""The sandbox protocol itself over a web socket, for the provider `remote` of other machines."""
