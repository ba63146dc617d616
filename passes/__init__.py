if __name__ != "emmy.passes":
    raise ImportError("import emmy.passes, not passes: a second import would register every op twice")
